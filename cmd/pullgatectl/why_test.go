package main

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"
)

// An api is an API server with the objects of testdata/api, and a kubeconfig for it.
type api struct {
	server     *httptest.Server
	kubeconfig string

	mu    sync.Mutex
	asked string // the paths, a line each
}

func startAPI(objects, dir string) (*api, error) {
	a := &api{kubeconfig: filepath.Join(dir, "kubeconfig")}
	a.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.asked += r.Method + " " + r.URL.Path + "\n"
		a.mu.Unlock()
		object, code, err := find(objects, r)
		if err != nil || r.Header.Get("Authorization") != "Bearer of-the-tenant" {
			object, code = map[string]any{"message": fmt.Sprintf("not the tenant, or %v", err)}, http.StatusInternalServerError
		}
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(object) // the client reports an answer that is incomplete
	}))
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.server.Certificate().Raw})
	return a, os.WriteFile(a.kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users:
- name: tenant
  user: {exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: echo, args: [%q]}}
contexts:
- {name: of-the-tenant, context: {cluster: c, user: tenant, namespace: team-b}}
- {name: nobody, context: {cluster: c, user: "", namespace: team-b}}
current-context: of-the-tenant
`, a.server.URL, base64.StdEncoding.EncodeToString(authority), `{"apiVersion": "client.authentication.k8s.io/v1", `+
		`"kind": "ExecCredential", "status": {"token": "of-the-tenant"}}`), 0o600)
}

var (
	objectPath = regexp.MustCompile(`^/api/v1/namespaces/([^/]+)/(pods|secrets|serviceaccounts|events)(/[^/]+)?$`)
	ofPod      = regexp.MustCompile(`^involvedObject\.uid=([^,]+),reportingComponent=pullgate$`)
)

// find returns the object that a request asks for, or a Status.
func find(objects string, r *http.Request) (object map[string]any, code int, err error) {
	if r.URL.Query().Has("limit") && !strings.Contains(r.URL.Path, "/namespaces/") {
		return list(objects, r)
	}
	at := objectPath.FindStringSubmatch(r.URL.Path)
	if at == nil || r.Method != http.MethodGet {
		return nil, 0, fmt.Errorf("unexpected %s %s", r.Method, r.URL.Path)
	}
	name := path.Base(at[3])
	if at[2] == "events" {
		of := ofPod.FindStringSubmatch(r.URL.Query().Get("fieldSelector"))
		if at[3] != "" || of == nil {
			return nil, 0, fmt.Errorf("unexpected list of Events: %s", r.URL)
		}
		name = of[1]
	}
	data, err := os.ReadFile(filepath.Join(objects, at[1], at[2], name+".yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]any{"kind": "Status", "message": at[2] + " " + name + " not found"}, http.StatusNotFound, nil
	}
	if err == nil {
		err = yaml.Unmarshal(data, &object)
	}
	if code, ok := object["code"].(float64); ok {
		return object, int(code), err
	}
	values := map[string][]byte{} // in JSON in base64, as the API has them
	texts, _ := object["stringData"].(map[string]any)
	for key, text := range texts {
		values[key] = fmt.Append(nil, text)
	}
	if object["data"] = values; texts == nil {
		delete(object, "data")
	}
	return object, http.StatusOK, err
}

// list returns the list of nodes that a label selects, or all reports.
func list(objects string, r *http.Request) (object map[string]any, code int, err error) {
	name := path.Base(r.URL.Path)
	if of := r.URL.Query().Get("labelSelector"); of != "" {
		name += "-" + of
	}
	data, err := os.ReadFile(filepath.Join(objects, "fleet", name+".yaml"))
	if err == nil {
		err = yaml.Unmarshal(data, &object)
	}
	code = http.StatusOK
	if c, ok := object["code"].(float64); ok {
		code = int(c)
	}
	return object, code, err
}

// paths writes the paths that the API server was asked for since the last call into a file.
func paths(ts *testscript.TestScript, neg bool, args []string) {
	a, ok := ts.Value("api").(*api)
	if neg || len(args) != 1 || !ok {
		ts.Fatalf("usage: paths file")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(a.asked), 0o600))
	a.asked = ""
}
