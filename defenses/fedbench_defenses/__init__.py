"""The robust aggregation rules that come with fedbench, one file each."""
