// Swagger UI over /openapi.json. Where the service wants an API key it is asked for, and kept in memory only.

"use strict";

const find = (selector) => document.querySelector(selector);
let key = "";

const authorized = (request) => {
  if (key) request.headers.Authorization ??= `Bearer ${key}`;
  return request;
};

async function load() {
  let answer;
  try {
    answer = await fetch("/openapi.json", authorized({ headers: {} }));
  } catch {
    return ask(`The service at ${location.host} does not answer.`);
  }
  if (answer.status === 401) return ask(key ? "The service does not know this API key." : "This service wants an API key.");
  if (!answer.ok) return ask(`The service answered with status ${answer.status}.`);
  find("#key-form").hidden = true;
  SwaggerUIBundle({
    spec: await answer.json(),
    dom_id: "#swagger-ui",
    deepLinking: true,
    showExtensions: true,
    showCommonExtensions: true,
    validatorUrl: null, // or Swagger UI would ask a service of its own
    requestInterceptor: authorized,
  });
}

function ask(reason) {
  find("#key-form").hidden = false;
  find("#reason").textContent = reason;
  find("#key").focus();
}

find("#key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = find("#key").value.trim();
  find("#key").value = "";
  load();
});

load();
