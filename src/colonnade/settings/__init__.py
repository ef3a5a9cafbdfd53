"""What a federation and its organisations say in their files, checked before anything
is read or sent."""
