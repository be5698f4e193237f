package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/internal/secret"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// This file has the Values of names and identifiers of NVMe.

// nqn is the NQN of a host or subsystem. check, if not nil, checks it further. A name in no form of
// the specification causes a warning.
func nqn(p *string, check func(string) error) Value {
	rules := schema{"pattern": `^[^\x00-\x1F\x7F-\x9F]+$`, "maxLength": nvme.NQNMaxLength}
	return named{checked(p, "NQN", rules, func(s string) (what, hint string) {
		if secret.Mask(s) != s { // names are shown
			return "a key, not an NQN", "Write it as dhchap_key or tls_key, and make another one."
		}
		err := nvme.ValidateNQN(s)
		if err == nil && check != nil {
			err = check(s)
		}
		if err != nil {
			return err.Error(), "An NQN has 1 to 223 bytes, usually as in " + nqnForms
		}
		return "", ""
	})}
}

const nqnForms = "nqn.YYYY-MM.REVERSED.DOMAIN:NAME or nqn.2014-08.org.nvmexpress:uuid:UUID."

// named is an NQN that causes a warning if it is unusual.
type named struct{ Value }

func (n named) decode(d *decoder, node *yaml.Node, path string) {
	n.Value.decode(d, node, path)
	if name := n.String(); !d.bad[path] && nvme.UnusualNQN(name) != "" && !d.unusual[name] {
		d.unusual[name] = true // once for all its uses
		if len(d.unusual) == maxUnusual+1 {
			d.warn(path, "more names are unusual", "The others are not listed.")
		} else if len(d.unusual) <= maxUnusual {
			d.warn(path, "unusual name: "+nvme.UnusualNQN(name),
				"It works where hosts use the same name. Usual are "+nqnForms)
		}
	}
}

// maxUnusual is the maximum number of warnings of unusual names.
const maxUnusual = 16

func subsystemNQN(s string) error {
	if s == nvme.DiscoveryNQN {
		return errors.New("the discovery subsystem exists by itself")
	}
	return nil
}

// labelPattern matches the labels of listeners. It matches no address.
const labelPattern = `^[A-Za-z][A-Za-z0-9_-]{0,62}$`

var label = regexp.MustCompile(labelPattern)

func listenerLabel(s string) (what, hint string) {
	if !label.MatchString(s) {
		return fmt.Sprintf("%q is not a name for a listener", printable(s)),
			"Begin with a letter; up to 63 letters, digits, - and _ are allowed."
	}
	return "", ""
}

// ascii is a string of Identify Controller, of printable ASCII characters (Base sections 1.4.2 and
// 5.1.13.2.1).
func ascii(p *string, size int) Value {
	rules := schema{"pattern": "^[ -~]*$", "maxLength": size}
	doc := fmt.Sprintf("up to %d characters", size)
	return checked(p, doc, rules, func(s string) (what, hint string) {
		if len(s) > size {
			return fmt.Sprintf("%d characters, but NVMe has room for %d", len(s), size),
				"Shorten it."
		}
		if i := strings.IndexFunc(s, func(r rune) bool { return r < 0x20 || r > 0x7E }); i >= 0 {
			return "contains a character that is not printable ASCII: " +
				printable(s[i:min(len(s), i+4)]), "Use letters, digits, blanks and punctuation."
		}
		return "", ""
	})
}

const (
	sameIdentifier = "Identifiers must be unique, or hosts ignore the namespace."
	orDelete       = ", or delete the key: a stable one is derived."
)

func id(p *uuid.UUID) Value {
	get := func() string {
		if *p == uuid.Nil {
			return ""
		}
		return p.String()
	}
	rules := schema{"pattern": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"}
	return unique{parsed("UUID", rules, get, func(s string) (what, hint string) {
		id, err := uuid.Parse(s)
		if err != nil || len(s) != 36 || id == uuid.Nil {
			return fmt.Sprintf("%q is not a UUID", printable(s)),
				"Write the output of uuidgen" + orDelete
		}
		*p = id
		return "", ""
	}), "uuid", sameIdentifier}
}

// hexadecimal is an NGUID or EUI-64.
func hexadecimal(p []byte) Value {
	get := func() string {
		if s := hex.EncodeToString(p); strings.Trim(s, "0") != "" {
			return s
		}
		return ""
	}
	doc := fmt.Sprintf("%d hexadecimal digits", 2*len(p))
	rules := schema{"pattern": fmt.Sprintf("^[0-9a-fA-F]{%d}$", 2*len(p))}
	return unique{parsed(doc, rules, get, func(s string) (what, hint string) {
		b, err := hex.DecodeString(s)
		if err != nil || len(b) != len(p) || strings.Trim(s, "0") == "" {
			return fmt.Sprintf("%q is not %s other than all zeroes", printable(s), doc),
				"Correct it" + orDelete
		}
		copy(p, b)
		return "", ""
	}), "identifier", sameIdentifier}
}
