"""/openapi.json: documents all endpoints, fields, answers and errors, from the declarations in the code."""
