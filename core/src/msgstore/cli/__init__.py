"""Command line: one module per group of commands. Standard output has the answer, standard error the notes about it.

Exit codes: 0 success, 1 damage found, 2 misuse or any other error, 3 something was not read, 130 interrupted.
"""
