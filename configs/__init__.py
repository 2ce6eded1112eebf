"""Configurations; a package, so that an installed `pri-rfed` finds them."""
