"""Tables as plain data, and the forms that they are written in."""
