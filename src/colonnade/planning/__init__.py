"""Before anything is sent: what a run will cost (`plan`), a federation file from tables
(`questions`), a search for its settings (`tuning`), and whether this installation works
(`doctor`)."""
