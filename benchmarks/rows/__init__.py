"""One file a group of rows of the table.

A group is a module whose docstring's first line is its heading, with `rows(quick) -> Iterator[Row]`; if it likes, with
`versions() -> dict` of the peers it measured, `pictures(rows, folder) -> {path from docs: text}`, and a PLACE, a number
that says where in the table it comes.
"""
