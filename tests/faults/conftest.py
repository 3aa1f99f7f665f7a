"""What holds for the tests of the fault harness."""


def pytest_configure(config):
    config.addinivalue_line("markers", "crash: takes minutes; for the environment crash of tox")
