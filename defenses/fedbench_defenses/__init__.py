"""The robust aggregation rules and prefilters that come with fedbench, by idea."""
