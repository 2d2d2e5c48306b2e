package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pullgate/pullgate/e2e/host"
)

// A Request is what the audit log has of a request to the API server that was answered, or whose answer has begun.
type Request struct {
	User           struct{ Username string }
	UserAgent      string
	Verb           string
	RequestURI     string
	ObjectRef      struct{ Resource, Subresource, Namespace, Name string }
	ResponseStatus struct {
		Code    int
		Message string
	}
}

// Refused reports whether the API server refused a request because of who asked, or for what.
func (r Request) Refused() bool {
	code := r.ResponseStatus.Code
	return code == 401 || code == 403 || code == 422
}

// ByNodes are the rules of Audit for all requests of nodes, and for no others.
const ByNodes = `[{level: Metadata, userGroups: ["system:nodes"]}, {level: None}]`

// Audit makes the API server of a cluster in dir log requests, and returns the flags for Start. The rules are those of
// an audit policy, in YAML.
func Audit(dir, rules string) (flags []string, err error) {
	defer host.Catch(&err)
	policy := filepath.Join(dir, "audit.yaml")
	host.Check(os.MkdirAll(dir, 0o700))
	host.Check(os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n"+
		"omitStages: [RequestReceived]\nrules: "+rules+"\n"), 0o600))
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + filepath.Join(dir, auditLog)}, nil
}

const auditLog = "audit.log"

// Requests returns what the log has that Audit asked for. A request that is being logged is left out.
func (c *Cluster) Requests() (all []Request, err error) {
	defer host.Catch(&err)
	for line := range strings.Lines(string(host.Must(os.ReadFile(c.path(auditLog))))) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		var r Request
		host.Check(json.Unmarshal([]byte(line), &r))
		all = append(all, r)
	}
	return all, nil
}

// NoneRefused returns an error if the API server has refused a request of a program and a user whose names begin so,
// and how many such requests the log has. A request that was granted later is none: an API server that has just
// started refuses some until it knows its roles.
func (c *Cluster) NoneRefused(program, user string) (made int, err error) {
	all, err := c.Requests()
	refused := map[[3]string]Request{}
	for _, r := range all {
		// The Node authorizer learns later of a pod than its node, which asks again, unless the pod is gone.
		early := strings.Contains(r.ResponseStatus.Message, "no relationship found between node")
		// client-go asks for a streaming list first, which an older API server does not have.
		asked := strings.Contains(r.ResponseStatus.Message, "sendInitialEvents is forbidden for watch")
		if !strings.HasPrefix(r.UserAgent, program) || !strings.HasPrefix(r.User.Username, user) || early || asked {
			continue
		}
		made++
		if what := [3]string{r.User.Username, r.Verb, r.RequestURI}; r.Refused() {
			refused[what] = r
		} else {
			delete(refused, what)
		}
	}
	for _, r := range refused {
		err = errors.Join(err, fmt.Errorf("the API server refused %s %s of %s: %+v",
			r.Verb, r.RequestURI, r.User.Username, r.ResponseStatus))
	}
	return made, err
}
