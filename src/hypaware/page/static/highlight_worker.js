// Highlights one block of code after the other. Answers with HTML, or null if the language is unknown.

importScripts("/static/highlight/highlight.min.js");

onmessage = (event) => {
  const { code, language } = event.data;
  const isKnown = language && hljs.getLanguage(language);
  postMessage(isKnown ? hljs.highlight(code, { language, ignoreIllegals: true }).value : null);
};
