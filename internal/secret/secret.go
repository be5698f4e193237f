// Package secret hides secrets in texts for people: messages, lines of the log, answers. What
// should not be there is found by what it looks like, where the text passes on its way out.
package secret

import (
	"regexp"
	"slices"
	"strings"
)

// Hidden stands in place of a secret.
const Hidden = "(hidden)"

// The beginnings of what Mask hides: keys of DH-HMAC-CHAP and of TLS in their interchange formats
// (Base section 8.3.4.5, TCP section 3.6.1.5), and private keys (RFC 7468). Few texts have one, and
// the others are looked through for these alone.
const (
	chapKey    = "DHHC-1:"
	tlsKey     = "NVMeTLSkey-1:"
	privateKey = "PRIVATE KEY-----"
)

// secrets matches them with what may follow, be it the whole secret or a part of it.
var secrets = regexp.MustCompile(chapKey + `[A-Za-z0-9][A-Za-z0-9+/=:]*` + `|` + tlsKey +
	`[A-Za-z0-9][A-Za-z0-9+/=:]*` + `|-----BEGIN [A-Z ]*` + privateKey +
	`[A-Za-z0-9+/=\s\\]*(-----END [A-Z ]*` + privateKey + `)?`)

// Mask returns the text without keys of hosts and without private keys. Of a text that has none it
// is the same string. Any goroutine may call it.
func Mask(text string) string {
	if !strings.Contains(text, chapKey) && !strings.Contains(text, tlsKey) &&
		!strings.Contains(text, privateKey) {
		return text
	}
	return secrets.ReplaceAllString(text, Hidden)
}

// randomWord is the least length of what MaskAll takes for a secret.
const randomWord = 16

// words matches what may be one secret, in base64, hexadecimal, or as a token.
var words = regexp.MustCompile(`[A-Za-z0-9+/=_~-]+`)

// knownWord is the least length of a word of output that MaskAll looks for.
const knownWord = 8

// MaskAll returns what a program has said that prints a secret, without anything that may be one:
// what Mask hides, what the program has printed or words of it, and words of at least 16 characters
// that have a digit. A part of a path counts by itself. cut says that the end of the text is
// missing: a word there may be a part of a secret, and is left out.
func MaskAll(text, printed string, cut bool) string {
	if cut {
		last := words.FindAllStringIndex(text, -1)
		if n := len(last); n > 0 && last[n-1][1] == len(text) {
			text = text[:last[n-1][0]]
		}
	}
	known := append(strings.Fields(printed), strings.TrimSpace(printed))
	// the longest first: one may be a part of another
	slices.SortFunc(known, func(a, b string) int { return len(b) - len(a) })
	for _, k := range known {
		if len(k) >= knownWord {
			text = strings.ReplaceAll(text, k, Hidden)
		}
	}
	return words.ReplaceAllStringFunc(Mask(text), func(word string) string {
		parts := []string{word}
		if strings.HasPrefix(word, "/") { // or a secret in base64, of which parts are as long
			parts = strings.Split(word, "/")
		}
		for i, p := range parts {
			if len(p) >= randomWord && strings.ContainsAny(p, "0123456789") {
				parts[i] = Hidden
			}
		}
		return strings.Join(parts, "/")
	})
}
