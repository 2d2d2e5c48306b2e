package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// LosePod deletes a pod in etcd and compacts it, so that only a new list shows that it is gone. The
// API server has to be stopped.
func (c *Cluster) LosePod(ctx context.Context, namespace, name string) error {
	var gone struct {
		Deleted string `json:"deleted"`
		Header  struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	key := "/registry/pods/" + namespace + "/" + name
	if err := c.askEtcd(ctx, "/v3/kv/deleterange", map[string]any{"key": []byte(key)}, &gone); err != nil {
		return err
	}
	if gone.Deleted != "1" {
		return fmt.Errorf("etcd has %q objects %s; want 1", gone.Deleted, key)
	}
	return c.askEtcd(ctx, "/v3/kv/compaction", map[string]any{"revision": gone.Header.Revision, "physical": true}, &struct{}{})
}

// askEtcd makes one call of etcd's JSON gateway.
func (c *Cluster) askEtcd(ctx context.Context, path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.etcdURL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("etcd: POST %s: %s: %s", path, resp.Status, text)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, answer)
}
