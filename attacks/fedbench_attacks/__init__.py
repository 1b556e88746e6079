"""The attacks that come with fedbench, one file each."""
