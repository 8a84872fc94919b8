// The login page, with one field for a token.

import { post } from "../api.js";
import { keepKey } from "../session.js";
import { html, useState } from "../ui.js";

export function LoginPage({ problem, done }) {
  const [message, setMessage] = useState(problem);
  const [busy, work] = useState(false);

  async function go(event) {
    event.preventDefault();
    work(true);
    const field = event.target.elements.token;
    try {
      const login = await post("/v1/login", { token: field.value.trim() });
      keepKey(login.key);
      field.value = "";
      done(login.info);
    } catch (error) {
      setMessage(error.message);
      work(false);
      field.focus();
    }
  }

  return html`<main class="login"><h1>gridweave</h1>
    <form onSubmit=${go}>
      <label for="token">Your token</label>
      <input id="token" name="token" type="password" required autocomplete="current-password" autofocus
        spellcheck=${false} aria-describedby="token-help" />
      <p id="token-help" class="hint">Ask an operator for one (<code>gridweave token create NAME</code>). For a grid of
        your own, run <code>gridweave open</code> on its machine instead.</p>
      ${message && html`<p class="trouble" role="alert">${message}</p>`}
      <button type="submit" disabled=${busy}>Log in</button>
    </form></main>`;
}
