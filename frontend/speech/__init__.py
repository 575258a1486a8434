"""Speech: writes what is said in recordings. Starts a request for each piece of a recording and joins the texts."""
