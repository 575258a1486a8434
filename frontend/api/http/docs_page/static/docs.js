// Starts Swagger UI over this server's own document. Keys stay in the page: they are not stored.
"use strict";

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  docExpansion: "list",
  filter: true,
  defaultModelRendering: "model",
  defaultModelExpandDepth: 1,
  displayRequestDuration: true,
  validatorUrl: null,
});
