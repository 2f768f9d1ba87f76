# What the quickstart declares: one file with drift to find, and a value that
# exists only in the state.
terraform {
  required_providers {
    testing = {
      source = "terrace-dev/testing"
    }
  }
}

variable "directory" {
  type = string
}

variable "greeting" {
  type    = string
  default = "Hello"
}

resource "terraform_data" "machine" {
  input = "machine-1"
}

resource "testing_file" "welcome" {
  path    = "${var.directory}/welcome.txt"
  content = "${var.greeting} from ${terraform_data.machine.output}\n"
}

output "message" {
  value = testing_file.welcome.content
}

output "nodes" {
  value = { (terraform_data.machine.output) = { ip = "192.0.2.11" } }
}

output "password" {
  value     = sha256(terraform_data.machine.id)
  sensitive = true
}
