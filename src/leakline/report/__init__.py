"""The report: frames, tables, charts and one offline page, made from a store and nothing else."""
