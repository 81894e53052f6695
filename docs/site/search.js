// The page of search results. lunr.js and the index are loaded as scripts, on this page alone. `base_url` is set by the theme.
(() => {
  const input = document.getElementById("mkdocs-search-query"), place = document.getElementById("mkdocs-search-results");
  if (!input) return;

  const load = name => new Promise((done, failed) => {
    const script = document.createElement("script");
    Object.assign(script, { src: `${base_url}/search/${name}`, onload: done, onerror: failed });
    document.head.append(script);
  });

  const article = page => {
    const [made, title, link, text] = ["article", "h3", "a", "p"].map(name => document.createElement(name));
    link.href = `${base_url}/${page.location}`;
    link.textContent = page.title;
    text.textContent = page.text.slice(0, 200);
    title.append(link);
    made.append(title, text);
    return made;
  };

  const begin = () => {
    const pages = new Map(searchIndex.docs.map(page => [page.location, page]));
    const index = lunr(function () {
      this.ref("location");
      this.field("title", { boost: 5 });
      this.field("text");
      pages.forEach(page => this.add(page));
    });
    const show = () => {
      const words = lunr.tokenizer(input.value).map(String).filter(word => word.length > 1);
      const found = words.length ? index.query(query => words.forEach(word => {
        query.term(word, { boost: 10 });
        query.term(word, { wildcard: lunr.Query.wildcard.TRAILING, usePipeline: false });
      })) : [];
      place.replaceChildren(...found.slice(0, 50).map(result => article(pages.get(result.ref))));
      if (!found.length) place.textContent = place.dataset.noResultsText;
    };
    input.addEventListener("input", show);
    show();
  };

  input.value = new URLSearchParams(location.search).get("q") || "";
  load("lunr.js").then(() => load("index.js")).then(begin);
})();
