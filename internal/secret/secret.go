// Package secret hides secrets in texts for people: messages, log lines, answers. It recognizes
// secrets by their form, at the places where texts leave the process.
package secret

import (
	"regexp"
	"slices"
	"strings"
)

// Hidden replaces a secret.
const Hidden = "(hidden)"

// The first characters of keys of DH-HMAC-CHAP and TLS (Base section 8.3.4.5, TCP section 3.6.1.5)
// and private keys (RFC 7468). Few texts have one, so Mask looks for these first.
const (
	chapKey    = "DHHC-1:"
	tlsKey     = "NVMeTLSkey-1:"
	privateKey = "PRIVATE KEY-----"
)

// secrets matches all or part of a secret, even in a URL, where % stands for some characters.
var secrets = regexp.MustCompile(chapKey + `[A-Za-z0-9][A-Za-z0-9+/=:%]*` + `|` + tlsKey +
	`[A-Za-z0-9][A-Za-z0-9+/=:%]*` + `|-----BEGIN [A-Z ]*` + privateKey +
	`[A-Za-z0-9+/=\s\\]*(-----END [A-Z ]*` + privateKey + `)?`)

// Mask returns the text without keys of hosts and private keys. Any goroutine may call it.
func Mask(text string) string {
	if !strings.Contains(text, chapKey) && !strings.Contains(text, tlsKey) &&
		!strings.Contains(text, privateKey) {
		return text
	}
	return secrets.ReplaceAllString(text, Hidden)
}

// randomWord is the minimum length of a word that MaskAll takes for a secret.
const randomWord = 16

// words matches a possible secret, in base64, hexadecimal, or as a token.
var words = regexp.MustCompile(`[A-Za-z0-9+/=_~-]+`)

// knownWord is the minimum length of a word of output that MaskAll looks for.
const knownWord = 8

// MaskAll masks the standard error of a program that prints a secret. It hides everything that may
// be secret: secrets found by Mask, the output of the program and its words, and words of at least
// 16 characters with a digit. Each part of a path is a word. cut means that the end of the text is
// missing. The last word may then be part of a secret, and is left out.
func MaskAll(text, printed string, cut bool) string {
	if cut {
		last := words.FindAllStringIndex(text, -1)
		if n := len(last); n > 0 && last[n-1][1] == len(text) {
			text = text[:last[n-1][0]]
		}
	}
	known := append(strings.Fields(printed), strings.TrimSpace(printed))
	// longest first, since one may be part of another
	slices.SortFunc(known, func(a, b string) int { return len(b) - len(a) })
	for _, k := range known {
		if len(k) >= knownWord {
			text = strings.ReplaceAll(text, k, Hidden)
		}
	}
	return words.ReplaceAllStringFunc(Mask(text), func(word string) string {
		parts := []string{word}
		if strings.HasPrefix(word, "/") { // or a base64 secret, with parts of this length
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
