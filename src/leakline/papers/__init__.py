"""The papers, one folder each: its studies, its printed numbers, its tables and charts."""
