package metrics

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestToken: a client that does not send exactly the token is refused, whatever else it sends and
// asks for, and its connection ends.
func TestToken(t *testing.T) {
	const token = "0123456789abcdef"
	var refused atomic.Int64
	s := testutil.Value(Listen(httpd.Endpoint{
		Listen: loopback, Admits: func(text string) bool { return text == token },
		Refused: func(remote netip.AddrPort, err error) {
			testutil.True(t, remote.IsValid() && !strings.Contains(err.Error(), token[:8]),
				"%v: %v", remote, err)
			refused.Add(1)
		},
	}, source(), quiet))(t)
	t.Cleanup(func() { _ = s.Close() })
	ask := func(first, headers string, d time.Duration) (status int, body string, open bool) {
		t.Helper()
		c := dial(t, s)
		defer c.Close()
		text := first + " HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n"
		testutil.Value(io.WriteString(c, text))(t)
		r := bufio.NewReader(c)
		answer, err := http.ReadResponse(r, nil)
		testutil.Must(t, err)
		defer answer.Body.Close()
		b, _ := io.ReadAll(answer.Body)
		_ = c.SetReadDeadline(time.Now().Add(d))
		_, err = r.ReadByte()
		return answer.StatusCode, string(b), errors.Is(err, os.ErrDeadlineExceeded)
	}
	for _, headers := range []string{
		"Authorization: Bearer " + token + "\r\n", "authorization: bearer " + token + "\r\n",
	} {
		status, _, open := ask("GET /metrics", headers, 50*time.Millisecond)
		testutil.True(t, status == http.StatusOK && open, "%s: %d", headers, status)
	}
	forged := []string{
		"", "Authorization:\r\n", "Authorization: Bearer\r\n", "Authorization: Bearer \r\n",
		"Authorization: " + token + "\r\n", "Authorization: Basic " + token + "\r\n",
		"Authorization: Bearer " + token[1:] + "\r\n", "Authorization: Bearer " + token + "0\r\n",
		"Authorization: Bearer  " + token + "\r\n", "Authorization: Bearer\t" + token + "\r\n",
		"Authorization: Bearer " + token + "," + token + "\r\n",
		"Authorization: Bearer " + strings.Repeat("a", 4<<10) + "\r\n",
		"Authorization: Bearer x\r\nAuthorization: Bearer " + token + "\r\n",
		"Authorization: Bearer " + token + "\r\nAuthorization: Bearer x\r\n",
		"Proxy-Authorization: Bearer " + token + "\r\n",
		"X-Authorization: Bearer " + token + "\r\n",
		"X-Forwarded-For: 127.0.0.1\r\nX-Real-IP: 127.0.0.1\r\n", "Cookie: token=" + token + "\r\n",
	}
	for _, headers := range forged {
		for _, first := range []string{
			"GET /metrics", "POST /metrics", "GET /", "GET /metrics?access_token=" + token,
		} {
			status, body, open := ask(first, headers, testutil.Patience)
			testutil.True(t, status == http.StatusUnauthorized && !open && !strings.Contains(body,
				"nvmf_target") && !strings.Contains(body, token), "%s %.50q: %d, open %v: %.100s",
				first, headers, status, open, body)
		}
	}
	testutil.Equal(t, refused.Load(), int64(4*len(forged)), "refusals")
}

// TestRefusedMakePlace: the maximum number of refused or silent connections does not keep a scraper
// waiting until the silent ones are cut off, which takes an hour here.
func TestRefusedMakePlace(t *testing.T) {
	s := testutil.Value(Listen(httpd.Endpoint{
		Listen: loopback, Admits: func(text string) bool { return text == "good" },
		Refused: func(netip.AddrPort, error) {},
	}, source(), quiet))(t)
	t.Cleanup(func() { _ = s.Close() })
	for i := range maxConnections {
		c := dial(t, s)
		switch i % 3 {
		case 0:
			_, _ = io.WriteString(c, request)
		case 1:
			_, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nAuthorization: Bea")
		}
	}
	c := dial(t, s)
	_, _ = io.WriteString(c, strings.Replace(request, "Host",
		"Authorization: Bearer good\r\nHost", 1))
	line, err := bufio.NewReader(c).ReadString('\n')
	testutil.True(t, err == nil && line == "HTTP/1.1 200 OK\r\n", "%q, %v", line, err)
}
