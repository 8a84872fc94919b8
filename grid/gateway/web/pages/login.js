// Who comes without a login, or whose login has ended: one field, for a token.

import { post } from "../api.js";
import { keepKey } from "../session.js";
import { html, useState } from "../ui.js";

export function LoginPage({ problem, done }) {
  const [said, say] = useState(problem);
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
      say(error.message);
      work(false);
      field.focus();
    }
  }

  return html`<main class="login"><h1>gridweave</h1>
    <form onSubmit=${go}>
      <label for="token">Your token</label>
      <input id="token" name="token" type="password" required autocomplete="current-password" autofocus
        spellcheck=${false} aria-describedby="token-help" />
      <p id="token-help" class="hint">An operator makes one for you: <code>gridweave token create NAME</code>. On the
        machine of a grid of your own, <code>gridweave open</code> logs you in.</p>
      ${said && html`<p class="trouble" role="alert">${said}</p>`}
      <button type="submit" disabled=${busy}>Log in</button>
    </form></main>`;
}
