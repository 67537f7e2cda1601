"""Files, messages, formats and command lines for every other package. It imports none of them."""
