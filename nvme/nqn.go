package nvme

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Base section 4.7: a name is UTF-8 of at most NQNMaxLength bytes, in fields that end with a NUL.
const (
	NQNFieldSize = 256
	NQNMaxLength = 223
)

// DiscoveryNQN is the well-known name of every discovery service (Base section 4.7).
const DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

// UUIDPrefix starts a name made of a UUID (Base section 4.7, second format).
const UUIDPrefix = "nqn.2014-08.org.nvmexpress:uuid:"

// ErrNQN is wrapped by every error about a malformed NQN.
var ErrNQN = errors.New("invalid NQN")

// nqnLabel is one label of a domain name.
const nqnLabel = `[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?`

var (
	nqnUUID   = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	nqnDomain = regexp.MustCompile(`^` + nqnLabel + `(\.` + nqnLabel + `)*$`)
)

// ValidateNQN checks a name for a host or subsystem: 1 to NQNMaxLength bytes of UTF-8 without
// control characters. It accepts names of any form, because Linux, nvmet and SPDK do; see
// UnusualNQN. Every name from an operator is checked with it.
func ValidateNQN(nqn string) error {
	switch {
	case nqn == "":
		return fmt.Errorf("%w: empty", ErrNQN)
	case len(nqn) > NQNMaxLength:
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrNQN, len(nqn), NQNMaxLength)
	case !utf8.ValidString(nqn):
		return fmt.Errorf("%w: %q is not UTF-8", ErrNQN, nqn)
	case strings.ContainsFunc(nqn, unicode.IsControl):
		return fmt.Errorf("%w: %q contains a control character", ErrNQN, nqn)
	}
	return nil
}

// UnusualNQN returns the reason why a valid name has none of the forms of Base section 4.7, "" if
// it has one: "nqn.yyyy-mm.reverse.domain:text", "nqn.2014-08.org.nvmexpress:uuid:UUID" or the
// discovery name. Some hosts refuse to connect to a subsystem with another name.
func UnusualNQN(nqn string) string {
	if nqn == DiscoveryNQN {
		return ""
	}
	if id, ok := strings.CutPrefix(nqn, UUIDPrefix); ok {
		if !nqnUUID.MatchString(id) {
			return fmt.Sprintf("%q: no UUID after %q", nqn, UUIDPrefix)
		}
		return ""
	}
	rest, ok := strings.CutPrefix(nqn, "nqn.")
	if !ok {
		return fmt.Sprintf("%q does not start with \"nqn.\"", nqn)
	}
	if len(rest) < 8 || rest[7] != '.' {
		return fmt.Sprintf("%q: no date yyyy-mm after \"nqn.\"", nqn)
	}
	if _, err := time.Parse("2006-01", rest[:7]); err != nil {
		return fmt.Sprintf("%q: %q is not a date yyyy-mm", nqn, rest[:7])
	}
	domain, text, ok := strings.Cut(rest[8:], ":")
	if !nqnDomain.MatchString(domain) {
		return fmt.Sprintf("%q: %q is not a reverse domain name", nqn, domain)
	}
	if !ok || text == "" {
		return fmt.Sprintf("%q: no \":\" and name after the domain", nqn)
	}
	return ""
}

// ParseNQN parses a name in a field of NQNFieldSize bytes sent by a peer: it must be UTF-8, not
// empty, at most NQNMaxLength bytes long, and followed by a NUL. Bytes after the NUL are ignored.
// The form of the name is not checked.
func ParseNQN(field *[NQNFieldSize]byte) (string, error) {
	n := bytes.IndexByte(field[:], 0)
	switch {
	case n < 0:
		return "", fmt.Errorf("%w: no NUL within %d bytes", ErrNQN, NQNFieldSize)
	case n == 0:
		return "", fmt.Errorf("%w: empty", ErrNQN)
	case n > NQNMaxLength:
		return "", fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrNQN, n, NQNMaxLength)
	case !utf8.Valid(field[:n]):
		return "", fmt.Errorf("%w: %q is not UTF-8", ErrNQN, field[:n])
	}
	return string(field[:n]), nil
}

// PutNQN fills a field with a validated name and NULs. It truncates longer names.
func PutNQN(field *[NQNFieldSize]byte, nqn string) { putString(field[:], nqn) }
