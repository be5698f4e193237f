package config

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

func (c *Control) keys() []Key {
	c.Socket, c.Mode = AutoSocket, 0o600
	return []Key{
		NewKey("socket", checked(&c.Socket, "absolute path, `auto` or `\"\"`",
			schema{"pattern": "^(/.*|auto|)$", "maxLength": maxSocket}, validateSocket),
			"Path of the socket; its directory is made if it is missing. `auto` is "+
				"`/run/nvmf-target/control.sock`, or of a user `$XDG_RUNTIME_DIR/nvmf-target/"+
				"control.sock`; `\"\"` is no socket. Set it when several targets run on a "+
				"machine."),
		NewKey("mode", fileMode(&c.Mode),
			"Permissions of the socket: who may open it, may also reload and disconnect. Set it "+
				"to `0660` together with `group`."),
		NewKey("group", Text(&c.Group),
			"Group of the socket, by name or number. Set it when others than root and the user "+
				"of the target operate it.").Without("that of the process"),
	}
}

// maxSocket is the longest path of a unix socket (unix(7): sun_path, less the zero at its end).
const maxSocket = 107

// validateSocket checks control.socket.
func validateSocket(path string) (what, hint string) {
	switch {
	case path == "" || path == AutoSocket:
	case !filepath.IsAbs(path):
		return fmt.Sprintf("%q is not an absolute path", printable(path)),
			"Begin it with /, or write auto, or \"\" for no socket."
	case len(path) > maxSocket:
		return fmt.Sprintf("the path has %d characters", len(path)),
			fmt.Sprintf("That of a socket has at most %d.", maxSocket)
	}
	return "", ""
}

// fileMode is permissions of a file that its owner may use, in octal digits with quotes or without.
func fileMode(p *fs.FileMode) Value {
	return &scalar{
		name: "octal digits", doc: "octal digits, 0600 to 0666",
		// YAML has several ways to write an octal number, so numbers are not checked.
		rules: schema{"type": []string{"string", "integer"}, "pattern": "^(0o?)?6[0246][0246]$"},
		get:   func() string { return fmt.Sprintf("%04o", uint32(*p)) },
		set: func(n *yaml.Node) (what, hint string) {
			v, err := strconv.ParseUint(strings.TrimPrefix(n.Value, "0o"), 8, 32)
			if err != nil || v&^0o666 != 0 || v&0o600 != 0o600 {
				return printable(n.Value) + " is not possible here",
					"Write 0600, or 0660 with a group."
			}
			*p = fs.FileMode(v)
			return "", ""
		},
	}
}
