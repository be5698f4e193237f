package config

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config/lang"
)

// Endpoint is the server of metrics or the page, and the authentication of its clients.
type Endpoint struct {
	// Listen is invalid if nothing is served.
	Listen netip.AddrPort
	// Certificate and Key are files, "" for no TLS.
	Certificate, Key string
	// Token is required of clients.
	Token Token
}

// Exposed reports whether other machines reach the endpoint.
func (e *Endpoint) Exposed() bool {
	return e.Listen.IsValid() && !e.Listen.Addr().Unmap().IsLoopback()
}

// Token is a secret text, never shown, as a hash keyed by the process. The zero value means none.
type Token [sha256.Size]byte

func newToken(text string) (t Token) {
	h := hmac.New(sha256.New, hidingKey)
	h.Write([]byte(text))
	return Token(h.Sum(nil))
}

// Is compares the token with a text, in constant time.
func (t Token) Is(text string) bool {
	other := newToken(text)
	return hmac.Equal(t[:], other[:])
}

// String returns a placeholder. Different tokens have different placeholders.
func (t Token) String() string {
	if t == (Token{}) {
		return ""
	}
	return fmt.Sprintf("hidden-%x", t[:8])
}

// token matches bearer tokens (RFC 6750, section 2.1).
var token = regexp.MustCompile(`^[A-Za-z0-9._~+/-]{16,512}=*$`)

// tokenValue is the text of a token. Neither get nor an error shows any of it.
func tokenValue(get func() string, set func(text string)) lang.Value {
	rules := lang.TextSchema(lang.Schema{"pattern": token.String()})
	return lang.Scalar("text", "text", rules, get, func(n *yaml.Node) (what, hint string) {
		if n.Tag != "!!str" || !token.MatchString(n.Value) {
			return "must be 16 to 512 letters, digits and any of ._~+/-",
				"openssl rand -hex 32 makes one; inline it needs quotes."
		}
		set(n.Value)
		return "", ""
	})
}

// openToken is a token that the program needs as text. No format verb shows a function.
func openToken(p *func() string) lang.Value {
	return tokenValue(func() string {
		if *p == nil {
			return ""
		}
		return newToken((*p)()).String()
	}, func(text string) { *p = func() string { return text } })
}

// WebTarget is another target that the page shows.
type WebTarget struct {
	// Name is its name on the page, URL the address of its own page.
	Name, URL string
	// Token returns the token of the other page; nil: none.
	Token func() string
	// CA is a file, "" for the CAs of the machine.
	CA string
}

func (w *WebTarget) value() lang.Value {
	return lang.Mapping{
		lang.NewKey("name", lang.Unique(labelOf(&w.Name, "a target"), "Give each target its own."),
			"Name of the target on the page.").Require("Choose one."),
		lang.NewKey("url", lang.Checked(&w.URL, "URL",
			lang.Schema{"pattern": "^https?://[^/?#@]+/?$"}, pageURL),
			"URL of its own page (its `web.listen`).").
			Require("Write https://HOST:PORT, or http://IP:PORT."),
		lang.NewKey("token", openToken(&w.Token),
			"Its `web.token`. Set it if it has one.").
			Without("none").OrSecretFile(),
		lang.NewKey("ca", lang.Path(&w.CA),
			"PEM file with the CAs that may have signed its certificate, read again for each "+
				"connection. Set it if you have your own CA.").
			Without("the CAs of the machine"),
	}
}

// pageURL returns why s is not the address of a page, without s, which may contain a password.
func pageURL(s string) (what, hint string) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		u.User != nil || strings.TrimSuffix(s, "/") != u.Scheme+"://"+u.Host {
		return "not the address of a page",
			"Write https://HOST:PORT, or http://IP:PORT, and nothing after it."
	}
	if _, err := netip.ParseAddr(u.Hostname()); u.Scheme == "http" && err != nil &&
		u.Hostname() != "localhost" {
		return "a name needs https", "Without TLS a target answers to its IP addresses only: " +
			"write one, or set web.certificate there."
	}
	return "", ""
}

// plain reports whether others on the network can read requests to the target.
func (w *WebTarget) plain() bool {
	u, _ := url.Parse(w.URL) // pageURL has seen it
	ip, _ := netip.ParseAddr(u.Hostname())
	return u.Scheme == "http" && ip.IsValid() && !ip.Unmap().IsLoopback()
}

// webTargets checks the keys of other targets together.
func (v *validator) webTargets(c *Config) {
	v.need("web.targets", len(c.WebTargets) > 0, c.Web.Listen.IsValid(), "web.listen")
	for i := range c.WebTargets {
		w, path := &c.WebTargets[i], fmt.Sprintf("web.targets[%d]", i)
		v.need(path+".ca", w.CA != "", !strings.HasPrefix(w.URL, "http:"), "https in url")
		if w.Token != nil && w.plain() {
			v.AddWarning(path+".token", "others on the network can read it",
				"Use https in url.")
		}
	}
}

// metricsKeys are the keys of metrics.
func metricsKeys(m *Endpoint) []lang.Key {
	return m.keys("IP address and TCP port at which Prometheus finds `/metrics`; port 0 takes "+
		"any free port, which the log names. Set it when you monitor the target, to an address "+
		"that only your monitoring can reach, or together with the keys that follow.",
		"Bearer token that scrapers must send (`authorization` in Prometheus). Set it with "+
			"`certificate` when others can reach the address.")
}

// webKeys are the keys of web.
func (c *Config) webKeys() []lang.Key {
	keys := c.Web.keys("IP address and TCP port of a page that shows the state of the target, "+
		"and cannot change it; port 0 takes any free port, which the log names. Set it to an "+
		"address that only this machine can reach, `127.0.0.1:9600`, or together with the keys "+
		"that follow.",
		"Password for browsers, with any user name, and bearer token. Set it with `certificate` "+
			"when others can reach the address, and on a machine with users who must not see "+
			"the page.")
	return append(keys, lang.NewKey("targets",
		lang.List(&c.WebTargets, 0, MaxWebTargets, (*WebTarget).value),
		"At most 8 other targets that the page also shows. This target queries them while a "+
			"page is open. Set it to see several targets in one place."))
}

// MaxWebTargets is the maximum number of other targets on a page.
const MaxWebTargets = 8

func (e *Endpoint) keys(listen, token string) []lang.Key {
	return []lang.Key{
		lang.NewKey("listen", addrPort(&e.Listen), listen).Without("not served"),
		lang.NewKey("certificate", lang.Path(&e.Certificate),
			"PEM file with a certificate and its intermediate certificates, for HTTPS only (TLS "+
				"1.3). A reload reads it and its key again. Set it when others can read traffic "+
				"on the network.").Without("none"),
		lang.NewKey("key", lang.Path(&e.Key),
			"PEM file with its private key. Set it with `certificate`.").Without("none"),
		lang.NewKey("token", tokenValue(func() string { return e.Token.String() },
			func(text string) { e.Token = newToken(text) }), token).Without("none").OrSecretFile(),
	}
}

// endpoint checks the keys of an endpoint together; name is metrics or web.
func (v *validator) endpoint(name string, e *Endpoint) {
	listen := name + ".listen"
	v.serves(listen, e.Listen)
	for key, given := range map[string]bool{
		"certificate": e.Certificate != "", "key": e.Key != "", "token": e.Token != Token{},
	} {
		v.need(name+"."+key, given, e.Listen.IsValid(), listen)
	}
	if (e.Certificate == "") != (e.Key == "") && !v.Bad(name+".certificate") &&
		!v.Bad(name+".key") {
		v.Add(name, "one of certificate and key is missing", "Set both, or none.")
	}
}

// Audit configures the audit file, which has the records in addition to the log.
type Audit struct {
	// Path is "" for no file.
	Path string
}

func (a *Audit) keys() []lang.Key {
	return []lang.Key{lang.NewKey("path",
		lang.UniquePath(&a.Path, "The file of the audit must not be storage."),
		"File to which each authentication, refusal, change of a key and administrative change "+
			"is appended, as a line of JSON, and made durable (fsync). A reload opens it again, "+
			"for logrotate. Set it when the log is not kept long enough, or when the audit must "+
			"be kept separately.").
		Without("the log only")}
}
