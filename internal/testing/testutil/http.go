package testutil

import (
	"io"
	"net/http"
	"testing"
)

// Get returns the body that is served at a URL.
func Get(t testing.TB, url string) string {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * Patience}
	r, err := c.Get(url)
	Must(t, err)
	defer func() { _ = r.Body.Close() }()
	b := Value(io.ReadAll(r.Body))(t)
	MustTrue(t, r.StatusCode == http.StatusOK, "%s: %s, %s", url, r.Status, b)
	return string(b)
}
