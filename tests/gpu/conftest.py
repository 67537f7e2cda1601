from one_run import here  # noqa: F401 - a fixture
