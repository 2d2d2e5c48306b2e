package review_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/testkit"
)

// Shows: 000-19
func TestKubeconfigErrors(t *testing.T) {
	a := newAuthority(t)
	dir := t.TempDir()
	certificate, key := a.pair(t, "policyd", time.Now().Add(time.Hour))
	_, otherKey := a.pair(t, "policyd", time.Now().Add(time.Hour))
	for name, content := range map[string]string{
		"ca.pem": string(a.PEM()), "cert.pem": string(certificate), "key.pem": string(key), "other.pem": string(otherKey),
		"empty": "", "text": "canary", "lines": "canary\nline", "large": strings.Repeat(" ", 1<<20+1),
	} {
		put(t, filepath.Join(dir, name), []byte(content))
	}
	testkit.Must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	const (
		inContext = "contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
		inCluster = "clusters[c].cluster."
		inServer  = inCluster + "server: "
		authority = inCluster + "certificate-authority: "
		inUser    = "users[u].user."
		want      = "must be an https URL, as in https://images.example.com/review"
		program   = "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, interactiveMode: Never}"
	)
	config := func(cluster, user string) string {
		return fmt.Sprintf("clusters: [{name: c, cluster: {%s}}]\nusers: [{name: u, user: {%s}}]\n%s", cluster, user,
			inContext)
	}
	server := func(url string) string { return config("server: '"+url+"'", "") }
	cluster := func(fields string) string { return config("server: 'https://b.test', "+fields, "") }
	user := func(fields string) string { return config("server: 'https://b.test'", fields) }
	for text, wants := range map[string][]string{
		"":                          {`current-context: Required value: must be the name of a context`},
		"current-context: other\n":  {`current-context: Not found: "other": must be the name of a context`},
		"[":                         {"yaml: "},
		"kind: Pod\napiVersion: v1": {"no kind \"Pod\" is registered"},
		inContext: {
			`contexts[x].context.cluster: Not found: "c": must be the name of a cluster`,
			`contexts[x].context.user: Not found: "u": must be the name of a user`,
		},
		config("", ""):                           {inServer + "Required value: " + want},
		server("http://b.test"):                  {inServer + `Invalid value: "http://b.test": ` + want},
		server("b.test:443"):                     {inServer + `Invalid value: "b.test:443": ` + want},
		server("https:///review"):                {inServer + `Invalid value: "https:///review": ` + want},
		server("https://b.test?a=canary"):        {inServer + want + ", without query and fragment"},
		server("https://u:canary@b.test"):        {inServer + "must have no user and no password"},
		server("https://u:canary@b.test:x/"):     {inServer + want},
		cluster("certificate-authority: absent"): {authority + "open " + dir + "/absent: no such file or directory"},
		cluster("certificate-authority: empty"):  {authority + dir + "/empty: must not be empty"},
		cluster("certificate-authority: text"):   {authority + "no PEM certificate in it"},
		cluster("certificate-authority: pipe"):   {authority + dir + "/pipe: not a regular file"},
		cluster("certificate-authority: large"):  {authority + dir + "/large: too large: more than 1048576 bytes"},
		cluster("certificate-authority-data: eA==, certificate-authority: absent"): {
			authority + "no PEM certificate in it",
		},
		cluster("insecure-skip-tls-verify: true"): {
			inCluster + "insecure-skip-tls-verify: Invalid value: true: must be false",
		},
		cluster("proxy-url: 'ftp://u:canary@p'"): {inCluster + `proxy-url: Unsupported value: "ftp": the scheme must be`},
		cluster("proxy-url: 'u:canary@p'"):       {inCluster + "proxy-url: must be a URL"},
		user(program):                            {inUser + "exec: Forbidden: no program is run; use token"},
		user("auth-provider: {name: oidc}"):      {inUser + "auth-provider: Forbidden: not supported"},
		user("as: admin"):                        {inUser + "as: Forbidden"},
		user("tokenFile: absent"):                {inUser + "tokenFile: open " + dir + "/absent: no such file or directory"},
		user("tokenFile: empty, token: x"):       {inUser + "tokenFile: " + dir + "/empty: must not be empty"},
		user("tokenFile: lines"):                 {inUser + "token: must be one line of printable characters"},
		user("token: canary, username: a"):       {"users[u].user: must have token or username, not both"},
		user("client-certificate: cert.pem"):     {inUser + "client-key: Required value"},
		user("client-key: key.pem"):              {inUser + "client-certificate: Required value"},
		user("client-key: absent, client-certificate: gone"): {
			inUser + "client-certificate: open " + dir + "/gone: no such file",
			inUser + "client-key: open " + dir + "/absent: no such file",
		},
		user("client-key: other.pem, client-certificate: cert.pem"): {
			inUser + "client-certificate: tls: private key does not match public key",
		},
		config("server: 'http://b.test', certificate-authority: absent", "tokenFile: absent, "+program): {
			inServer, authority, inUser + "exec", inUser + "tokenFile",
		},
	} {
		path := filepath.Join(dir, "kubeconfig")
		if text != "" {
			text = "apiVersion: v1\nkind: Config\n" + text
		}
		put(t, path, []byte(text))
		b := backend()
		b.File, b.Kubeconfig = "/p/b.yaml", path
		_, err := review.NewClient(b)
		if err == nil {
			t.Errorf("%s: no error", text)
			continue
		}
		if strings.Contains(err.Error(), "canary") {
			t.Errorf("an error has a secret: %v", err)
		}
		lines := strings.Split(err.Error(), "\n")
		for i, want := range wants {
			prefix := "/p/b.yaml: imagePolicy.kubeConfigFile: " + path + ": "
			if i >= len(lines) || !strings.HasPrefix(lines[i], prefix) || !strings.Contains(lines[i], want) {
				t.Errorf("%s\nerror %d of\n%v\nwant %s", text, i, err, want)
			}
		}
		if len(lines) != len(wants) {
			t.Errorf("%s: %d errors; want %d:\n%v", text, len(lines), len(wants), err)
		}
	}
}
