"""The commands of `pri-rfed`, one module for each group.

A module is imported for every call, `--help` included: what is slow to import is imported inside the functions.
"""
