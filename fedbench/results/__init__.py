"""Reading a store of records: index, query, aggregate."""
