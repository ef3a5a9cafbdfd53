"""Before anything is sent: what a run will cost (`plan`), a federation file from tables (`questions`), and whether this
installation works (`doctor`)."""
