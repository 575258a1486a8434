"""Speech: returns the text of recordings. Starts a request for each piece of a recording and joins the texts."""
