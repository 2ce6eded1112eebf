"""The explorer: a local page to try settings on, and to follow a run while it goes on."""
