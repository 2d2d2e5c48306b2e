package node

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
)

// A metricsServer is where a program serves its metrics and probes.
type metricsServer struct{ metrics string }

func newMetricsServer() (metricsServer, error) {
	port, err := host.FreePort()
	return metricsServer{fmt.Sprintf("127.0.0.1:%d", port)}, err
}

// MetricsAddress is the host and port that its metrics are scraped from.
func (m metricsServer) MetricsAddress() string { return m.metrics }

func (m metricsServer) get(path string) (string, error) {
	client := http.Client{Timeout: 30 * time.Second}
	resp, err := client.Get("http://" + m.metrics + path)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, resp.Status, body)
	}
	return string(body), err
}

// Scrape returns the metrics page.
func (m metricsServer) Scrape() (string, error) { return m.get("/metrics") }

func (m metricsServer) healthy() error {
	_, err := m.get("/healthz")
	return err
}

// Ready asks /readyz.
func (m metricsServer) Ready() error {
	_, err := m.get("/readyz")
	return err
}

// Metric returns the sum of all series of a name that carry every given label, written name="value".
func (m metricsServer) Metric(name string, labels ...string) (float64, error) {
	page, err := m.Scrape()
	if err != nil {
		return 0, err
	}
	total := 0.0
	for line := range strings.Lines(page) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(series, "{"); !ok || bare != name || !hasAll(series, labels) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		total += v
	}
	return total, nil
}

func hasAll(series string, labels []string) bool {
	for _, l := range labels {
		if !strings.Contains(series, l) {
			return false
		}
	}
	return true
}
