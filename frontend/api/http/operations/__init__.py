"""Routes for operators, load balancers and dashboards, and the list of models."""
