// Command stub answers like OpenTofu as quickly as a program can, so that what
// is measured with it is everything but the tool.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const change = `{"address":"terraform_data.a","mode":"managed","type":"terraform_data","name":"a","provider_name":"terraform.io/builtin/terraform","change":{"actions":["create"],"before":null,"after":{"input":"x"},"after_unknown":{"id":true},"before_sensitive":false,"after_sensitive":{}}}`

func main() {
	data := os.Getenv("TF_DATA_DIR")
	applied := filepath.Join(data, "applied")
	switch os.Args[1] {
	case "version":
		fmt.Println(`{"terraform_version":"1.12.6","platform":"linux_amd64","provider_selections":{}}`)
	case "init":
		initialise(filepath.Join(data, "terraform.tfstate"))
	case "plan":
		write(argument("-out="), "a plan")
		if _, err := os.Stat(applied); err != nil {
			os.Exit(2) // there are changes
		}
	case "show":
		fmt.Println(`{"format_version":"1.2","terraform_version":"1.12.6","resource_changes":[` + change + `],"configuration":{"root_module":{"resources":[{"address":"terraform_data.a","mode":"managed","type":"terraform_data","name":"a"}]}}}`)
	case "apply":
		write(applied, "")
		fmt.Println(`{"@level":"info","@message":"Apply complete! Resources: 1 added, 0 changed, 0 destroyed.","type":"change_summary","changes":{"add":1,"change":0,"remove":0,"operation":"apply"}}`)
		fmt.Println(`{"@level":"info","@message":"Outputs: 0","type":"outputs","outputs":{}}`)
	case "output":
		fmt.Println(`{}`)
	}
}

// initialise writes down the backend that the override file in the working directory asks for.
func initialise(path string) {
	var override struct {
		Terraform struct {
			Backend struct {
				Kubernetes json.RawMessage `json:"kubernetes"`
			} `json:"backend"`
		} `json:"terraform"`
	}
	text, err := os.ReadFile("terrace_override.tf.json")
	if err == nil {
		err = json.Unmarshal(text, &override)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error: "+err.Error())
		os.Exit(1)
	}
	write(path, fmt.Sprintf(`{"backend":{"type":"kubernetes","config":%s}}`, override.Terraform.Backend.Kubernetes))
}

func argument(prefix string) string {
	for _, arg := range os.Args {
		if value, found := strings.CutPrefix(arg, prefix); found {
			return value
		}
	}
	return os.DevNull
}

func write(path, text string) {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
