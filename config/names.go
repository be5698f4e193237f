package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/secret"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// This file has the Values of names and identifiers of NVMe.

// nqn is an NQN. wellKnown is why it cannot be that of the discovery service, "" if it can. A name
// of no known form gets a warning.
func nqn(p *string, wellKnown string) lang.Value {
	rules := lang.Schema{"pattern": `^[^\x00-\x1F\x7F-\x9F]+$`, "maxLength": nvme.NQNMaxLength}
	return named{lang.Checked(p, "NQN", rules, func(s string) (what, hint string) {
		if secret.Mask(s) != s { // names are shown
			return "a key, not an NQN", "Write it as dhchap_key or tls_key, and make another one."
		}
		err := nvme.ValidateNQN(s)
		if s == nvme.DiscoveryNQN && wellKnown != "" {
			err = errors.New(wellKnown)
		}
		if err != nil {
			return err.Error(), "An NQN has 1 to 223 bytes, usually as in " + nqnForms
		}
		return "", ""
	})}
}

const nqnForms = "nqn.YYYY-MM.REVERSED.DOMAIN:NAME or nqn.2014-08.org.nvmexpress:uuid:UUID."

// named is an NQN that causes a warning if it is unusual.
type named struct{ lang.Value }

func (n named) Decode(d *lang.Decoder, node *yaml.Node, path string) {
	n.Value.Decode(d, node, path)
	if why := nvme.UnusualNQN(n.String()); why != "" && !d.Bad(path) {
		d.AddWarningOnce("more names are unusual", path, "unusual name: "+why,
			"It works where hosts use the same name. Usual are "+nqnForms)
	}
}

// labelPattern matches the labels of listeners. It matches no address.
const labelPattern = `^[A-Za-z][A-Za-z0-9_-]{0,62}$`

var label = regexp.MustCompile(labelPattern)

// labelOf is a name for an object; of is the object, with its article.
func labelOf(p *string, of string) lang.Value {
	return lang.Checked(p, "name", lang.Schema{"pattern": labelPattern},
		func(s string) (what, hint string) {
			if !label.MatchString(s) {
				return fmt.Sprintf("%q is not a name for %s", lang.Printable(s), of),
					"Begin with a letter; up to 63 letters, digits, - and _ are allowed."
			}
			return "", ""
		})
}

// ascii is text of Identify Controller: printable ASCII (Base sections 1.4.2 and 5.1.13.2.1).
func ascii(p *string, size int) lang.Value {
	rules := lang.Schema{"pattern": "^[ -~]*$", "maxLength": size}
	doc := fmt.Sprintf("up to %d characters", size)
	return lang.Checked(p, doc, rules, func(s string) (what, hint string) {
		if len(s) > size {
			return fmt.Sprintf("%d characters, but NVMe has room for %d", len(s), size),
				"Shorten it."
		}
		if i := strings.IndexFunc(s, func(r rune) bool { return r < 0x20 || r > 0x7E }); i >= 0 {
			return "contains a character that is not printable ASCII: " +
					lang.Printable(s[i:min(len(s), i+4)]),
				"Use letters, digits, blanks and punctuation."
		}
		return "", ""
	})
}

const (
	sameIdentifier = "Identifiers must be unique, or hosts ignore the namespace."
	orDelete       = ", or delete the key: a stable one is derived."
)

func id(p *uuid.UUID) lang.Value {
	get := func() string {
		if *p == uuid.Nil {
			return ""
		}
		return p.String()
	}
	rules := lang.Schema{"pattern": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"}
	v := lang.Parsed("UUID", rules, get, func(s string) (what, hint string) {
		id, err := uuid.Parse(s)
		if err != nil || len(s) != 36 || id == uuid.Nil {
			return fmt.Sprintf("%q is not a UUID", lang.Printable(s)),
				"Write the output of uuidgen" + orDelete
		}
		*p = id
		return "", ""
	})
	return lang.UniqueAs("uuid", v, sameIdentifier)
}

// hexadecimal is an NGUID or EUI-64.
func hexadecimal(p []byte) lang.Value {
	get := func() string {
		if s := hex.EncodeToString(p); strings.Trim(s, "0") != "" {
			return s
		}
		return ""
	}
	doc := fmt.Sprintf("%d hexadecimal digits", 2*len(p))
	rules := lang.Schema{"pattern": fmt.Sprintf("^[0-9a-fA-F]{%d}$", 2*len(p))}
	v := lang.Parsed(doc, rules, get, func(s string) (what, hint string) {
		b, err := hex.DecodeString(s)
		if err != nil || len(b) != len(p) || strings.Trim(s, "0") == "" {
			return fmt.Sprintf("%q is not %s other than all zeroes", lang.Printable(s), doc),
				"Correct it" + orDelete
		}
		copy(p, b)
		return "", ""
	})
	return lang.UniqueAs("identifier", v, sameIdentifier)
}
