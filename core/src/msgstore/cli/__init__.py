"""The command line: one module a group of verbs. Standard output is the answer, standard error what is said about it.

Exit codes: 0 fine, 1 damage found, 2 misuse (and everything else that is an error), 130 interrupted.
"""
