package review_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/policyd/review"
)

func TestKubeconfigErrors(t *testing.T) {
	a := newAuthority(t)
	dir := t.TempDir()
	certificate, key := a.pair(t, "policyd", time.Now().Add(time.Hour))
	_, otherKey := a.pair(t, "policyd", time.Now().Add(time.Hour))
	for name, content := range map[string]string{
		"ca.pem": string(a.PEM()), "cert.pem": string(certificate), "key.pem": string(key), "other.pem": string(otherKey), "empty": "", "text": "canary",
		"lines": "canary\nline", "large": strings.Repeat(" ", 1<<20+1),
	} {
		put(t, filepath.Join(dir, name), []byte(content))
	}
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	config := func(cluster, user string) string {
		return fmt.Sprintf("clusters: [{name: c, cluster: {%s}}]\nusers: [{name: u, user: {%s}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n", cluster, user)
	}
	cluster := func(fields string) string { return config(fields, "") }
	user := func(fields string) string { return config("server: 'https://b.test'", fields) }
	const (
		inServer = "clusters[c].cluster.server: "
		inUser   = "users[u].user."
		want     = "must be an https URL, as in https://images.example.com/review"
	)
	for text, wants := range map[string][]string{
		"":                          {`current-context: Required value: must be the name of a context`},
		"current-context: other\n":  {`current-context: Not found: "other": must be the name of a context`},
		"[":                         {"yaml: "},
		"kind: Pod\napiVersion: v1": {"no kind \"Pod\" is registered"},
		"contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n": {
			`contexts[x].context.cluster: Not found: "c": must be the name of a cluster`, `contexts[x].context.user: Not found: "u": must be the name of a user`,
		},
		cluster(""):                                                                                          {inServer + "Required value: " + want},
		cluster("server: 'http://b.test'"):                                                                   {inServer + `Invalid value: "http://b.test": ` + want},
		cluster("server: b.test:443"):                                                                        {inServer + `Invalid value: "b.test:443": ` + want},
		cluster("server: 'https:///review'"):                                                                 {inServer + `Invalid value: "https:///review": ` + want},
		cluster("server: 'https://b.test?a=canary'"):                                                         {inServer + want + ", without query and fragment"},
		cluster("server: 'https://u:canary@b.test'"):                                                         {inServer + "must have no user and no password"},
		cluster("server: 'https://u:canary@b.test:x/'"):                                                      {inServer + want},
		cluster("server: 'https://b.test', insecure-skip-tls-verify: true"):                                  {"clusters[c].cluster.insecure-skip-tls-verify: Invalid value: true: must be false"},
		cluster("server: 'https://b.test', certificate-authority: absent"):                                   {"clusters[c].cluster.certificate-authority: " + dir + "/absent: no such file or directory"},
		cluster("server: 'https://b.test', certificate-authority: empty"):                                    {"clusters[c].cluster.certificate-authority: " + dir + "/empty: must not be empty"},
		cluster("server: 'https://b.test', certificate-authority: text"):                                     {"clusters[c].cluster.certificate-authority: no PEM certificate in it"},
		cluster("server: 'https://b.test', certificate-authority: pipe"):                                     {"clusters[c].cluster.certificate-authority: " + dir + "/pipe: not a regular file"},
		cluster("server: 'https://b.test', certificate-authority: large"):                                    {"clusters[c].cluster.certificate-authority: " + dir + "/large: too large: more than 1048576 bytes"},
		cluster("server: 'https://b.test', certificate-authority-data: eA==, certificate-authority: absent"): {"clusters[c].cluster.certificate-authority: no PEM certificate in it"},
		cluster("server: 'https://b.test', proxy-url: 'ftp://u:canary@p'"):                                   {`clusters[c].cluster.proxy-url: Unsupported value: "ftp": the scheme must be`},
		cluster("server: 'https://b.test', proxy-url: 'u:canary@p'"):                                         {"clusters[c].cluster.proxy-url: must be a URL"},
		user("exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, interactiveMode: Never}"):     {inUser + "exec: Forbidden: no program is run; use token"},
		user("auth-provider: {name: oidc}"):                                                                  {inUser + "auth-provider: Forbidden: not supported"},
		user("as: admin"):                                                                                    {inUser + "as: Forbidden"},
		user("tokenFile: absent"):                                                                            {inUser + "tokenFile: " + dir + "/absent: no such file or directory"},
		user("tokenFile: empty, token: x"):                                                                   {inUser + "tokenFile: " + dir + "/empty: must not be empty"},
		user("tokenFile: lines"):                                                                             {inUser + "token: must be one line of printable characters"},
		user("token: canary, username: a"):                                                                   {"users[u].user: must have token or username, not both"},
		user("client-certificate: cert.pem"):                                                                 {inUser + "client-key: Required value"},
		user("client-key: key.pem"):                                                                          {inUser + "client-certificate: Required value"},
		user("client-key: absent, client-certificate: gone"):                                                 {inUser + "client-certificate: " + dir + "/gone: no such file", inUser + "client-key: " + dir + "/absent: no such file"},
		user("client-key: other.pem, client-certificate: cert.pem"):                                          {inUser + "client-certificate: tls: private key does not match public key"},
		config("server: 'http://b.test', certificate-authority: absent", "tokenFile: absent, exec: {command: x, apiVersion: client.authentication.k8s.io/v1}"): {
			inServer, "clusters[c].cluster.certificate-authority: ", inUser + "exec", inUser + "tokenFile",
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
			if i >= len(lines) || !strings.HasPrefix(lines[i], "/p/b.yaml: imagePolicy.kubeConfigFile: "+path+": ") || !strings.Contains(lines[i], want) {
				t.Errorf("%s\nerror %d of\n%v\nwant %s", text, i, err, want)
			}
		}
		if len(lines) != len(wants) {
			t.Errorf("%s: %d errors; want %d:\n%v", text, len(lines), len(wants), err)
		}
	}
}

func TestKubeconfigFile(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	put(t, filepath.Join(dir, "large"), []byte(strings.Repeat("#", 1<<20+1)))
	for name, want := range map[string]string{"absent": "no such file or directory", "folder": "not a regular file", "large": "too large: more than 1048576 bytes"} {
		b := backend()
		b.File, b.Kubeconfig = "/p/b.yaml", filepath.Join(dir, name)
		if _, err := review.NewClient(b); err == nil || err.Error() != "/p/b.yaml: imagePolicy.kubeConfigFile: "+b.Kubeconfig+": "+want {
			t.Errorf("%s: %v; want %s", name, err, want)
		}
	}
}
