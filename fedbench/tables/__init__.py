"""One model of a table, and a writer for each format."""
