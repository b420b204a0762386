"""A hospital's own node.

settings   its file: who it is, where its data, keys and SuperLink are
policy     what it asks for before it trains
limit      how long a turn may take
checks     what its engineer looks at before it joins
start      the SuperNode itself
"""
