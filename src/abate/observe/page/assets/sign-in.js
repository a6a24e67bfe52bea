// A link may carry the token behind #, which a browser does not send: it is posted as if it had been typed.

function signIn() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (location.hash || location.search) history.replaceState(null, "", location.pathname); // it does not stay in sight
  if (!token) return;
  const form = document.querySelector("form");
  form.elements.token.value = token;
  form.submit();
}

window.addEventListener("hashchange", signIn);
signIn();
