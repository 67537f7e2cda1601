"""An imitation of webdataset, of as much as a WebLoader needs."""
