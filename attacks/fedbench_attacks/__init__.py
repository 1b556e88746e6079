"""The attacks that come with fedbench, one file for each paper or idea."""
