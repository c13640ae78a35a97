"""``adapter = "slime"``: functions written for slime or Miles, called as those call them, on copies of our data."""
