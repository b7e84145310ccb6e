"""The tests, and programs that share their helpers, such as python -m tests.fuzz."""
