package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// maxKeyFile is more than a key has, in bytes.
const maxKeyFile = 4 << 10

// keyCommand makes and checks keys, as "nvme gen-dhchap-key" and "nvme check-dhchap-key" do.
func keyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "key",
		Short: "Make or check a key with which hosts authenticate (DH-HMAC-CHAP)",
	}
	var length, hash uint8
	gen := &cobra.Command{
		Use:   "gen",
		Short: "Make a random key and print it",
		Long: "Make a random key and print it, in the format that dhchap_key_file and " +
			"\"nvme connect --dhchap-secret\" take. Redirect it to a file that nobody else can " +
			"read (umask 077).",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			h := auth.Hash(hash)
			k, err := auth.NewKey(cmp.Or(int(length), h.Size(), auth.SHA256.Size()), h)
			if err == nil {
				_, err = fmt.Fprintln(c.OutOrStdout(), k.Reveal())
			}
			return err
		},
	}
	gen.Flags().Uint8VarP(&length, "key-length", "l", 0,
		"length of the secret in bytes: 32, 48 or 64 (default: that of the hash)")
	gen.Flags().Uint8VarP(&hash, "hmac", "m", 0,
		"hash of the transformation: 0 none, 1 SHA-256, 2 SHA-384, 3 SHA-512")
	check := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check the key in a file, or on standard input, and say what it is",
		Args:  cobra.MaximumNArgs(1),
		RunE:  checkKey,
	}
	c.AddCommand(gen, check)
	return c
}

func checkKey(c *cobra.Command, args []string) error {
	in, name := c.InOrStdin(), "standard input"
	if len(args) > 0 {
		if strings.HasPrefix(args[0], "DHHC-1:") {
			return errors.New("everybody can see arguments: give a file, or the key on standard " +
				"input")
		}
		f, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer f.Close()
		in, name = f, args[0]
	}
	text, err := io.ReadAll(io.LimitReader(in, maxKeyFile))
	if err != nil {
		return err
	}
	k, err := auth.ParseKey(strings.TrimRight(string(text), "\r\n"))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	transformation := "no transformation"
	if h := k.Transformation(); h != auth.NoHash {
		transformation = "transformation " + h.String()
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "valid: %d bytes, %s\n", k.Size(), transformation)
	return err
}
